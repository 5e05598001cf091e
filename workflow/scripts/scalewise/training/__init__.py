"""Models, data and options of ``train.py``: torch only, nothing that plans or measures."""
