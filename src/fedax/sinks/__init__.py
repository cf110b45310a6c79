"""Where a run's metrics go besides its folder: TensorBoard, MLflow, Weights & Biases, tables.

Each sink writes by its own library, which is an extra. What is measured is decided elsewhere.
"""
