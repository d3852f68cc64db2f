"""From logits to text: search and sampling, fast inference backends, and the predictors that ``transom.load`` returns."""
