"""The Python inside the egress boundary: policy, receipts, squid relay, DNS filter, control. The host imports it
too."""
