"""LoRA adapters in the format of the PEFT library, both ways."""
