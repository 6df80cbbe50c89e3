"""Tokenise a corpus ahead of time: python scripts/prepare_data.py experiment=mlm_base."""

from bertlab.cli.prepare_data import main

if __name__ == "__main__":
    main()
