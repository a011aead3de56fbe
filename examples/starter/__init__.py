"""The starter policy: its tokenizer, its pretraining, and the weights they made."""
