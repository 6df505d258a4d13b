"""DeepSeek-V4.1-Flash in PyTorch, driven by the generated model_plan.py."""
