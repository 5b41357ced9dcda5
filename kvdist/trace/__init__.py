"""What happened, told: events of requests and blocks, and three ways to read them."""
