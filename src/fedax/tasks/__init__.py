"""Built-in tasks: data and a model, with presets in a .toml file next to each module.

One module per family; `registry` lists them.
"""
