"""Generated data sets, which are the phrasebook, exercises and sequences of letters."""
