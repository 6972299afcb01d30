-- Run once, when the volume is empty.
CREATE DATABASE dptune_budget;
CREATE DATABASE mlflow;
CREATE DATABASE mlflow_auth;
