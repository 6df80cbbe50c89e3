"""What is trained: one LightningModule per task."""
