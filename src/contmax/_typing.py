"""Shape annotations: those of jaxtyping if it was imported before contmax, else plain tensors.

Annotations such as ``Float[Tensor, "*batch L"]`` document shapes. The tests check them at run time. Users need not
install jaxtyping; where it is installed but not imported, contmax spends no time on its annotations.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Shaped as Shaped
elif sys.modules.get("jaxtyping") is not None:
    from jaxtyping import Bool, Float, Int, Shaped
else:

    class _AnyShape:
        """Replaces a dtype of jaxtyping: ``Float[Tensor, "…"]`` becomes ``Tensor``."""

        def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
            return item[0]

    Bool = Float = Int = Shaped = _AnyShape
