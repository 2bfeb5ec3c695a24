"""Shape annotations: jaxtyping where it is installed, plain tensors where it is not.

Annotations such as ``Float[Tensor, "*batch L"]`` document shapes. The test-suite checks them at run time;
users do not pay for them and need not install jaxtyping.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxtyping import Bool as Bool
    from jaxtyping import Float as Float
    from jaxtyping import Int as Int
    from jaxtyping import Shaped as Shaped
else:
    try:
        from jaxtyping import Bool, Float, Int, Shaped
    except ModuleNotFoundError:

        class _AnyShape:
            """Stands in for a jaxtyping dtype: ``Float[Tensor, "…"]`` is then just ``Tensor``."""

            def __class_getitem__(cls, item: tuple[Any, str]) -> Any:
                return item[0]

        Bool = Float = Int = Shaped = _AnyShape
