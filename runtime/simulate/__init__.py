"""``deepinfer-gen simulate``: the compiled scheduler of a whole group against a modelled device, and all rules checked."""
