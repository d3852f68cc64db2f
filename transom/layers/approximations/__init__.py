"""Approximations of softmax attention: linear attention, Performer, Linformer, Nystromformer."""
