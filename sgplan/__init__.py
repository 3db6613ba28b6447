"""sgplan: plan, show and run the decisions of distributed training on an unmodified script."""

__version__ = "0.1.0"
