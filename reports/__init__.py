"""Pictures and pages from SQL; reads only."""
