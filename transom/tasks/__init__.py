"""Tasks, one package each: ``schema.py`` defines the recipe, ``task.py`` connects data, model, loss, metrics and predictor."""
