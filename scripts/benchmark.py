"""Speed side by side with transformers: python scripts/benchmark.py throughput."""

from bertlab.cli.benchmark import main

if __name__ == "__main__":
    main()
