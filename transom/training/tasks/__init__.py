"""The tasks: what each makes of a recipe and its data, and what a validation measures; one face for all of them."""
