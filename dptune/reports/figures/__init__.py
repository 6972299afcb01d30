"""Figures as inline SVG: how they are drawn, and what they show."""
