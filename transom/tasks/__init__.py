"""The tasks, a folder each: ``schema.py`` says what a recipe may hold, ``task.py`` ties data, model, loss, metrics and answers together."""
