"""fedax"""
