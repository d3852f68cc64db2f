"""Looking into models and runs: tap sites, attention re-derived, alignments, pictures, the report and the model card."""
