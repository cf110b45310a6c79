"""Measurements of a run: drift, dissimilarity, communication, and a quadratic model.

Pure functions of models, data and updates; they do not affect training.
"""
