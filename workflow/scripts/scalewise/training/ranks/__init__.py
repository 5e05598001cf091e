"""Who a rank is, how ranks meet, and what each of them does."""
