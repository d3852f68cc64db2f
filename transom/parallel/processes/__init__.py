"""The processes of a run: how they start, meet, talk and notice that one is lost."""
