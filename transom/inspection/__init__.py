"""Looking into models and runs: sites, attention re-derived, alignments, pictures, the report and the model card."""
