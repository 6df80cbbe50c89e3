"""The one training entry: python train.py experiment=mlm_base."""

from bertlab.cli.train import main

if __name__ == "__main__":
    main()
