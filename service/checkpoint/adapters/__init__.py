"""Adapters: folders of PEFT, and the updates of a model's weights that they hold."""
