"""Fill in masks: python scripts/fill_mask.py MODEL "In the beginning God created the [MASK] ."."""

from bertlab.cli.fill_mask import main

if __name__ == "__main__":
    main()
