"""What can be measured of a run: drift, dissimilarity, communication, a quadratic model of it.

Pure functions of models, data and updates; nothing here trains or feeds back.
"""
