"""``python -m contmax_lab`` is the command ``contmax``; torchrun starts it by this name."""

from contmax_lab.cli import main

if __name__ == "__main__":
    main()
