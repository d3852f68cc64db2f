"""Attention masks: rules, dense masks, and what the queries of a pass may attend to."""
