"""E_p[ψ]: the means of basis functions under a density, by a table of rules over pairs of types.

The modules named `_line_…`, `_space_…` and `_sums` hold the rules, which register themselves when imported.
"""

from contmax.expectations import _line_any as _line_any
from contmax.expectations import _line_gaussian as _line_gaussian
from contmax.expectations import _space_gaussian as _space_gaussian
from contmax.expectations import _space_nodes as _space_nodes
from contmax.expectations import _sums as _sums
from contmax.expectations._canonical import canonical_jacobian as canonical_jacobian
from contmax.expectations._expectation import expectation as expectation
from contmax.expectations._expectation import register_expectation as register_expectation
