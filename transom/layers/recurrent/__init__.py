"""Recurrent layers: RNN, LSTM and GRU encoders and decoders."""
