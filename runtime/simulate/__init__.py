"""``deepinfer-gen simulate``: the compiled scheduler of a group against a modelled device, every step checked."""
