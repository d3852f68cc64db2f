"""A local web page for a trained model: requests, answers, and the server on the loopback interface."""
