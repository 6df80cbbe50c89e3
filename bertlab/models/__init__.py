"""The models: what a BERT encoder is made of, and its heads."""
