"""Learning problems by name: data and a model, with presets in a .toml file beside each.

One file a family; `registry` lists them. No method and no training here.
"""
