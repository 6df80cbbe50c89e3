"""Export a run to the transformers format: python scripts/export.py RUN_DIR OUT."""

from bertlab.cli.export import main

if __name__ == "__main__":
    main()
