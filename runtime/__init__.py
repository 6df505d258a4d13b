"""The Python runtime: links a built engine with the model and generates text offline."""
