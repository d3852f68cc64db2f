"""The tasks, each in a package of its own.

``schema.py`` defines the recipe of a task. ``task.py`` connects its data, model, loss, metrics and predictor.
"""
