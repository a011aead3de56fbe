"""The door to transformers and PEFT: runs, differentiates and saves a model, knows no loss and no rows."""
