"""Who a rank is, which device is its own, and how ranks meet."""
