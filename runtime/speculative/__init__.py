"""Drafting and verification at run time: confidences, the split of a verified total, and the cost curve."""
