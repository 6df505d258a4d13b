"""Pictures of the state slot and of a KV block, from ``layout.json``: for the terminal and as SVG."""
