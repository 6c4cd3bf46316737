"""Predicting run times: features and the roofline prior."""
