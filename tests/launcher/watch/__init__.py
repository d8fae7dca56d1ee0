"""Tests of the live pages."""
