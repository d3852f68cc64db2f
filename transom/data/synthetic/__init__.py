"""Generated data: the phrasebook, exercises and sequences of symbols."""
