"""Predictions on a box: the score as a piecewise polynomial, and a quadrature rule fitted to where it is positive."""

from contmax.prediction._box._box_prediction import BoxPrediction as BoxPrediction
