"""E_p[ψ]: the means of basis functions under a density, by a table of rules over pairs of types.

The modules `_any_density`, `_line_gaussian` and `_space_gaussian` hold the rules and register them when imported.
"""

from contmax.expectations import _any_density as _any_density
from contmax.expectations import _line_gaussian as _line_gaussian
from contmax.expectations import _space_gaussian as _space_gaussian
from contmax.expectations._expectation import canonical_jacobian as canonical_jacobian
from contmax.expectations._expectation import expectation as expectation
from contmax.expectations._expectation import register_expectation as register_expectation
