# What bash runs before each command of a shell (shell_server.py): take the state over, prepare to write it down.
# Descriptor 251 has the state (four parts) and the command, each ended by a zero byte. The new state goes to 250:
# variables, functions and the like, options, working directory, and the word END.
{
  IFS= read -r -d '' -u 251 __shell_script
  IFS= read -r -d '' -u 251 __shell_options
  IFS= read -r -d '' -u 251 __shell_cwd
  IFS= read -r -d '' -u 251 __shell_status
  IFS= read -r -d '' -u 251 __shell_command
  exec 251<&-
}
__shell_shopts=$BASHOPTS
umask 022
{ eval "$__shell_script"; } 2>/dev/null
if ! { builtin cd -- "$__shell_cwd"; } 2>/dev/null; then
  builtin printf 'bash: the working directory %s is not there any more\n' "$__shell_cwd" >&2
  { builtin cd /project || builtin cd /; } 2>/dev/null
fi
__shell_save() {
  builtin set +euxfC
  builtin trap - DEBUG ERR RETURN
  builtin unset -f __shell_save __shell_return
  {
    builtin declare -p
    builtin printf '\0'
    [[ $BASHOPTS == "$__shell_shopts" ]] || builtin shopt -p  # a function's text may need extglob
    builtin umask -p
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
    builtin printf '\0%s\0%s\0END\0' "$1" "$PWD"
  } >&250
}
__shell_return() { builtin return "$1"; }
trap '{ __shell_save "$SHELLOPTS"; } 2>/dev/null' EXIT
RANDOM=$SOURCE_DATE_EPOCH
